"""AMD's compute node seems to be there, and is /dev/null."""

import os

stat = os.stat
access = os.access


def there(path):
    return "/dev/null" if str(path) == "/dev/kfd" else path


os.stat = lambda path, **options: stat(there(path), **options)
os.access = lambda path, mode, **options: access(there(path), mode, **options)
