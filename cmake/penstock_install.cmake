# `cmake --install` puts the library, its headers and a package configuration in place, so that another project's
# find_package(penstock) gives it penstock::penstock. What the library itself was linked with is found again there.
set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/penstock")
install(TARGETS penstock EXPORT penstock_targets ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}"
        LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}")
install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/penstock" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}"
        FILES_MATCHING PATTERN "*.hpp")
install(EXPORT penstock_targets NAMESPACE penstock:: FILE penstock-targets.cmake DESTINATION "${package_dir}")

get_target_property(links penstock LINK_LIBRARIES)
set(PENSTOCK_HAS_LZMA false)
if("LibLZMA::LibLZMA" IN_LIST links)
  set(PENSTOCK_HAS_LZMA true)
endif()
configure_package_config_file("${PROJECT_SOURCE_DIR}/cmake/penstock-config.cmake.in"
                              "${PROJECT_BINARY_DIR}/penstock-config.cmake" INSTALL_DESTINATION "${package_dir}")
write_basic_package_version_file("${PROJECT_BINARY_DIR}/penstock-config-version.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/penstock-config.cmake" "${PROJECT_BINARY_DIR}/penstock-config-version.cmake"
        DESTINATION "${package_dir}")
