"""The APIs of in-house systems, each a module that maps its names onto drumline's own; see docs/seeds.md."""
