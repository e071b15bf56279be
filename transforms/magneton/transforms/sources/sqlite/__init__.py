"""Profiles kept in SQLite: NVIDIA Nsight Systems and AMD rocpd."""
