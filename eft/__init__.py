"""Evolution fine-tuning: from the logs of evolutionary searches to a mutator that searches better."""

__version__ = "0.1.0"
