"""Files in, model values out: settings, policies and the catalogue."""
