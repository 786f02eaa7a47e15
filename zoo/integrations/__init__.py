"""Put any encoding into a model that zoo did not build."""
