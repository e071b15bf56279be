"""Run a system and leave a recording. The only stage that imports machine-learning frameworks and sensors."""
