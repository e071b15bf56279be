"""What the files look like: Arrow schemas, manifest, versions, errors, ids, atomic writes. Imports no other stage."""
