"""What sources share that make their samples themselves."""
