"""What the matcher is measured with. Needs torch and transformers (the ``examples`` extra), except for `match_scale`."""
