"""Output that is whole or absent: publication, exchange of directories, what a killed run left."""
