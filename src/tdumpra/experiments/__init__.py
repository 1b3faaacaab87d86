"""The paper's tables and figures, and what they lack: grids of runs that resume where they stopped."""
