"""Everything that can be set: typed sections, recipes, and how layers of settings become one."""
