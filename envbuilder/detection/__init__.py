"""How a host is recognised: fetch (`snapshot`), parse (text in), decide (data in)."""
