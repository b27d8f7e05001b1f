# What `cmake --install` puts where: the library, its headers, the two commands, and what lets other
# projects find them (find_package(chorus), pkg-config).
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

install(TARGETS chorus EXPORT chorusTargets
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
        FILE_SET HEADERS DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})

# In a folder of its own: whoever wants it in NVIDIA's place says so (docs/nccl.md).
set_target_properties(chorus_nccl PROPERTIES EXPORT_NAME nccl)
install(TARGETS chorus_nccl EXPORT chorusTargets
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/chorus
        FILE_SET nccl_headers DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})

if(CHORUS_BUILD_TOOLS)
  # chorus-perf looks for its workers, one per library it can measure, beside itself.
  get_directory_property(workers DIRECTORY ${PROJECT_SOURCE_DIR}/perf
                         DEFINITION CHORUS_PERF_BACKENDS)
  list(TRANSFORM workers PREPEND chorus-perf-worker-)
  file(RELATIVE_PATH to_library ${CMAKE_INSTALL_FULL_BINDIR} ${CMAKE_INSTALL_FULL_LIBDIR})
  foreach(command IN ITEMS chorus_cli chorus-perf ${workers})
    set_target_properties(${command} PROPERTIES INSTALL_RPATH "$ORIGIN/${to_library}")
    install(TARGETS ${command} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  endforeach()
endif()

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/chorus)
install(EXPORT chorusTargets NAMESPACE chorus:: DESTINATION ${package_dir}
        FILE chorusConfig.cmake)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/chorusConfigVersion.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/chorusConfigVersion.cmake DESTINATION ${package_dir})

# Paths in chorus.pc begin at the file itself, so that a prefix can be moved.
file(RELATIVE_PATH pc_to_prefix
     ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
foreach(package IN ITEMS chorus chorus-nccl)
  configure_file(${PROJECT_SOURCE_DIR}/cmake/${package}.pc.in ${PROJECT_BINARY_DIR}/${package}.pc
                 @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/${package}.pc
          DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endforeach()
