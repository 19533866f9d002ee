# penstock_add_test(<folder> <file>...): one test program per folder of tests/, found case by case.
find_package(GTest 1.12 REQUIRED CONFIG)
include(GoogleTest)

function(penstock_add_test folder)
  cmake_parse_arguments(arg "" "" "LIBRARIES;LABELS" ${ARGN})
  set(target ${folder}_tests)
  add_executable(${target} ${arg_UNPARSED_ARGUMENTS})
  target_link_libraries(${target} PRIVATE penstock_internal GTest::gtest_main GTest::gmock ${arg_LIBRARIES})
  target_include_directories(${target} PRIVATE "${PROJECT_SOURCE_DIR}/tests")
  target_compile_definitions(${target} PRIVATE PENSTOCK_TEST_DATA="${PROJECT_SOURCE_DIR}/tests"
                             PENSTOCK_TEST_SANITIZERS="${PENSTOCK_SANITIZE}")
  target_precompile_headers(${target} PRIVATE <gtest/gtest.h>)
  set_target_properties(${target} PROPERTIES PENSTOCK_IS_TEST ON)
  if(NOT arg_LABELS)
    set(arg_LABELS unit)
  endif()
  gtest_discover_tests(${target} TEST_PREFIX "${folder}." DISCOVERY_TIMEOUT 60
                       PROPERTIES TIMEOUT 300 LABELS "${arg_LABELS}")
endfunction()
