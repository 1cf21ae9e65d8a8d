#include <halfbyte/cuda.h>

#include <cstdio>

int main() {
    std::printf("%s\n", halfbyte::cuda::unavailable_reason().c_str());
}
