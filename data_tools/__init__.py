"""From the logs of evolutionary searches to training data: harvest, label, clean, build."""
