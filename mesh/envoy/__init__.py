"""The mesh's Envoys: certificates, topology, rendered files, validation, start and stop."""
