"""Schema versions and the steps that bring older files up to the newest one."""
