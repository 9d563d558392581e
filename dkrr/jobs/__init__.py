"""Job files: many models in one run of the command line, checked before work, resumed, one record a model."""
