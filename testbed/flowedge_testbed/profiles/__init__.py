"""Device, model and link profiles as YAML, and the library that reads them."""
