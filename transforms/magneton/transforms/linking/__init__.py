"""From staged events to rows: what lies inside what, what launched what, and in which step."""
