# CUDA as an option: the compiler, C++20 for it, and one static runtime.
if(NOT PENSTOCK_WITH_CUDA)
  return()
endif()
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 90)
endif()
set(CMAKE_CUDA_RUNTIME_LIBRARY Static) # one CUDA runtime; the binary starts without a driver
enable_language(CUDA)
find_package(CUDAToolkit 12.4 REQUIRED)
