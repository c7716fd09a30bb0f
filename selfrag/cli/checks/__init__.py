"""What `selfrag doctor` looks at, one file for each kind of thing that can be wrong. They report and repair nothing."""
