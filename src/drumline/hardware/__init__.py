"""What this machine has: GPUs by UUID through NVML, CPU and memory within container limits, peak rates. No torch."""
