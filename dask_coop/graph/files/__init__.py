"""Write tasks that store blocks in files."""
