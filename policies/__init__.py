"""Built-in policy presets, one TOML file each: keys that a policy with `extends` starts from."""
