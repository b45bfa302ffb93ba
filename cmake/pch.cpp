// Owns the precompiled header that every LibTorch-facing library reuses.
