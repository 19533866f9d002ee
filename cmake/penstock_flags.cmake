# Flags for our own targets only. Nothing here reaches a consumer: the targets
# are linked PRIVATE, and no CMAKE_<LANG>_FLAGS variable is touched.
add_library(penstock_flags INTERFACE)
target_compile_features(penstock_flags INTERFACE cxx_std_20)
# By hand: CMake 3.25.1 does not know nvcc's C++20 (no cuda_std_20, no CUDA_STANDARD 20).
# Relaxed constexpr lets kernels call the constexpr arithmetic that the CPU halves use: one text for
# both, without marking public headers for the device.
target_compile_options(penstock_flags INTERFACE "$<$<COMPILE_LANGUAGE:CUDA>:-std=c++20;--expt-relaxed-constexpr>")

set(cxx_warnings -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion -Wnon-virtual-dtor
                 -Wold-style-cast)
target_compile_options(
  penstock_flags
  INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:${cxx_warnings}>"
            "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra,-Wshadow>")
if(PENSTOCK_WERROR)
  target_compile_options(
    penstock_flags
    INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:-Werror>"
              "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Werror;--Werror=all-warnings>")
endif()

if(CMAKE_UNITY_BUILD)
  # What one file calls a name is no shadow of another's, and g++ takes an unnamed namespace for one of a header where
  # its file is included by a unity file. The debug presets, which are no unity builds, warn of both.
  target_compile_options(
    penstock_flags INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:-Wno-shadow>"
                             "$<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CXX_COMPILER_ID:GNU>>:-Wno-subobject-linkage>")
endif()

# Names and lines for a stack are enough in a release; all that a debugger can use makes compiling a good
# deal slower.
target_compile_options(penstock_flags INTERFACE "$<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CONFIG:RelWithDebInfo>>:-g1>")

if(PENSTOCK_SANITIZE)
  # Test programs compile in less than half the time without optimisation, and run a little longer for
  # it: most of the work is done in the library.
  set(optimisation "-O$<IF:$<BOOL:$<TARGET_PROPERTY:PENSTOCK_IS_TEST>>,0,1>")
  target_compile_options(penstock_flags INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${PENSTOCK_SANITIZE};-fno-sanitize-recover=all;-fno-omit-frame-pointer;${optimisation};-g1>")
  target_link_options(penstock_flags INTERFACE "-fsanitize=${PENSTOCK_SANITIZE}")
  if(PENSTOCK_SANITIZE MATCHES "address" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # g++ 12 and 13 align vectors of 64 bytes wrongly where locals live on the sanitizer's own stack
    # (GCC bug 110027): AVX-512 stores to them fault.
    target_compile_options(penstock_flags INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:--param=asan-use-after-return=0>")
  endif()
endif()
