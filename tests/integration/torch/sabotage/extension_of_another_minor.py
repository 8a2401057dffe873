"""What zentorch does whose library does not find torch's symbols."""

raise ImportError("libzentorch.so: undefined symbol: _ZN3c104impl23ExcludeDispatchKeyGuardD1Ev")
