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

# Keeps the .cu files of targets out of unity files, which newer versions of CMake (from 3.31 on) make of them too:
# nvcc is slow with a long file, and the names of kernels' helpers are those of one file.
function(penstock_keep_kernels_apart)
  foreach(target IN LISTS ARGN)
    if(NOT TARGET ${target})
      continue()
    endif()
    get_target_property(files ${target} SOURCES)
    get_target_property(folder ${target} SOURCE_DIR)
    list(FILTER files INCLUDE REGEX "\\.cu$")
    list(TRANSFORM files REPLACE "^([^/].*)$" "${folder}/\\1")
    set_source_files_properties(${files} TARGET_DIRECTORY ${target} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  endforeach()
endfunction()
