// Marks a function that is compiled for the CPU and, by nvcc, for the GPU.
#pragma once

#ifdef __CUDACC__
#define HALFBYTE_HOST_DEVICE __host__ __device__
#else
#define HALFBYTE_HOST_DEVICE
#endif
