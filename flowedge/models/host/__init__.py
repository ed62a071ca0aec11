"""The process and the device that models are computed in: libraries, memory, threads, copies."""
