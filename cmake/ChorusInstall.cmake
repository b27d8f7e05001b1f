# What `cmake --install` puts where, by component; cmake/ChorusPackages.cmake makes a Debian package
# of each component.
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)
include(ChorusDocumentation)

set(doc_dir ${CMAKE_INSTALL_DATAROOTDIR}/doc/chorus)
file(RELATIVE_PATH bin_to_library ${CMAKE_INSTALL_FULL_BINDIR} ${CMAKE_INSTALL_FULL_LIBDIR})
file(RELATIVE_PATH helpers_to_library
     ${CMAKE_INSTALL_FULL_LIBEXECDIR}/chorus ${CMAKE_INSTALL_FULL_LIBDIR})

# chorus_install_program(COMPONENT DESTINATION RPATH TARGET...): those of the targets that exist.
function(chorus_install_program component destination rpath)
  foreach(target IN LISTS ARGN)
    if(TARGET ${target})
      set_target_properties(${target} PROPERTIES INSTALL_RPATH "$ORIGIN/${rpath}")
      install(TARGETS ${target} RUNTIME DESTINATION ${destination} COMPONENT ${component})
    endif()
  endforeach()
endfunction()

install(TARGETS chorus EXPORT chorusTargets
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
                COMPONENT library NAMELINK_COMPONENT development
        FILE_SET HEADERS DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT development)

# In a folder of its own: whoever wants it in NVIDIA's place says so (docs/nccl.md).
set_target_properties(chorus_nccl PROPERTIES EXPORT_NAME nccl)
install(TARGETS chorus_nccl EXPORT chorusTargets
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/chorus
                COMPONENT nccl NAMELINK_COMPONENT development
        FILE_SET nccl_headers DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT development)

if(CHORUS_BUILD_TOOLS)
  chorus_install_program(tools ${CMAKE_INSTALL_BINDIR} ${bin_to_library}
                         chorus_cli chorus-perf chorus_perf_selection chorus-perf-startup
                         chorus-perf-rejoin chorus-perf-synthesis)
  # The trainer is a program of NCCL's API, too.
  chorus_install_program(trainer ${CMAKE_INSTALL_BINDIR}
                         "${bin_to_library};$ORIGIN/${bin_to_library}/chorus" train)
  # What users do not start themselves. A package of its own for what needs the libraries that
  # Chorus is measured beside.
  set(helpers ${CMAKE_INSTALL_LIBEXECDIR}/chorus)
  chorus_install_program(tools ${helpers} ${helpers_to_library}
                         chorus-perf-enter chorus-perf-worker-chorus chorus-perf-worker-chorus-gpu
                         chorus-perf-worker-floor chorus-perf-worker-nccl)
  chorus_install_program(peers ${helpers} ${helpers_to_library}
                         chorus-perf-worker-openmpi chorus-perf-worker-mpich chorus-perf-worker-gloo)
  if(CHORUS_TRAINER_MODULE)
    install(FILES ${CHORUS_TRAINER_MODULE} DESTINATION ${CMAKE_INSTALL_LIBDIR}/chorus
            COMPONENT trainer)
  endif()
  chorus_install_documentation()
endif()

# Where Debian's Python looks below /usr; elsewhere it is a folder for PYTHONPATH.
set(python lib/python3/dist-packages)
file(RELATIVE_PATH module_to_library ${CMAKE_INSTALL_PREFIX}/${python}/chorus
     ${CMAKE_INSTALL_FULL_LIBDIR})
# chorus_install_module(TARGET COMPONENT): the package that TARGET was built into.
function(chorus_install_module target component)
  if(NOT TARGET ${target})
    return()
  endif()
  string(REPLACE chorus_python chorus package ${target})
  # Behind where a wheel has it.
  set_property(TARGET ${target} APPEND PROPERTY INSTALL_RPATH "$ORIGIN/${module_to_library}")
  install(TARGETS ${target} LIBRARY DESTINATION ${python}/${package} COMPONENT ${component})
  install(DIRECTORY ${PROJECT_BINARY_DIR}/python/${package} DESTINATION ${python}
          COMPONENT ${component} FILES_MATCHING PATTERN *.py PATTERN *.pyi PATTERN py.typed)
endfunction()
chorus_install_module(chorus_python python)
chorus_install_module(chorus_torch torch)

install(FILES LICENSE README.md CHANGELOG.md ARCHITECTURE.md DESTINATION ${doc_dir}
        COMPONENT tools)
install(DIRECTORY docs DESTINATION ${doc_dir} COMPONENT tools)
install(DIRECTORY examples DESTINATION ${doc_dir} COMPONENT development
        PATTERN trainer EXCLUDE PATTERN CMakeLists.txt EXCLUDE PATTERN __pycache__ EXCLUDE)
install(FILES examples/trainer/README.md DESTINATION ${doc_dir}/examples/trainer COMPONENT tools)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/chorus)
install(EXPORT chorusTargets NAMESPACE chorus:: DESTINATION ${package_dir}
        FILE chorusConfig.cmake COMPONENT development)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/chorusConfigVersion.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/chorusConfigVersion.cmake DESTINATION ${package_dir}
        COMPONENT development)

# Paths in chorus.pc begin at the file itself, so that a prefix can be moved. Where the loader does
# not look by itself, programs are told where the library lies.
file(RELATIVE_PATH pc_to_prefix
     ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
set(pc_rpath "")
if(NOT CMAKE_INSTALL_PREFIX STREQUAL "/usr")
  set(pc_rpath " -Wl,-rpath,\${libdir}")
endif()
foreach(package IN ITEMS chorus chorus-nccl)
  configure_file(${PROJECT_SOURCE_DIR}/cmake/${package}.pc.in ${PROJECT_BINARY_DIR}/${package}.pc
                 @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/${package}.pc
          DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT development)
endforeach()
