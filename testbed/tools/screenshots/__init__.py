"""Screenshots of the gateway's page, taken with a paced cluster and a headless Chromium."""
