"""Power and energy as Prometheus keeps them: query responses and the text exposition format."""
