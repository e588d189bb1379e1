"""Files and memory: checked reading of untrusted files, and checks of sizes before allocation."""
