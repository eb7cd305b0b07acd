"""Who may call: keys, people behind a proxy, addresses, and the checks before every call."""
