# Debian packages, one per component of `cmake --install` (scripts/package.sh):
#
#   libchorus0.2           the library; its name changes with its SONAME, so that programs built
#                          against another minor version keep theirs
#   libchorus-nccl         libnccl.so.2 in a folder of its own
#   libchorus-dev          headers, pkg-config, CMake, examples
#   chorus-tools           the commands, their manual pages and completions, the documents
#   chorus-perf-peers      chorus-perf's workers for Open MPI, MPICH and Gloo
#   chorus-trainer         train, which chorus layout asks
#   python3-chorus         the module chorus, for Debian's Python
#   python3-chorus-torch   the backend of torch.distributed, for Debian's torch
#
# What libraries each needs is found by dpkg-shlibdeps; below is what no linker sees.
set(version ${PROJECT_VERSION}-1)
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME chorus)
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGE_CONTACT "The Chorus developers <chorus@localhost>")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_GROUPING IGNORE)
set(CPACK_DEBIAN_PACKAGE_RELEASE 1)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS
    ${PROJECT_BINARY_DIR}/src ${PROJECT_BINARY_DIR}/src/nccl ${PROJECT_BINARY_DIR}/nccl)

# chorus_package(COMPONENT NAME SECTION SUMMARY [DEPENDS ...] [RECOMMENDS ...])
macro(chorus_package component name section summary)
  cmake_parse_arguments(ARG "" "" "DEPENDS;RECOMMENDS" ${ARGN})
  string(TOUPPER ${component} key)
  list(APPEND CPACK_COMPONENTS_ALL ${component})
  set(CPACK_DEBIAN_${key}_PACKAGE_NAME ${name})
  set(CPACK_DEBIAN_${key}_PACKAGE_SECTION ${section})
  set(CPACK_COMPONENT_${key}_DESCRIPTION "${summary}\n${PROJECT_DESCRIPTION}.")
  list(JOIN ARG_DEPENDS ", " CPACK_DEBIAN_${key}_PACKAGE_DEPENDS)
  list(JOIN ARG_RECOMMENDS ", " CPACK_DEBIAN_${key}_PACKAGE_RECOMMENDS)
  # Every package has the licence; a plain installation has it once (ChorusInstall.cmake).
  install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DATAROOTDIR}/doc/${name}
          RENAME copyright COMPONENT ${component} EXCLUDE_FROM_ALL)
endmacro()

set(library libchorus${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
set(CPACK_COMPONENTS_ALL "")
chorus_package(library ${library} libs "Collective communication, the library" RECOMMENDS libibverbs1)
set(CPACK_DEBIAN_LIBRARY_PACKAGE_GENERATE_SHLIBS ON)
chorus_package(nccl libchorus-nccl libs "Collective communication behind NCCL's C API")
chorus_package(development libchorus-dev libdevel "Collective communication, for building programs"
               DEPENDS "${library} (= ${version})" "libchorus-nccl (= ${version})")
if(CHORUS_BUILD_TOOLS)
  chorus_package(tools chorus-tools utils "Collective communication, the commands"
                 DEPENDS "${library} (= ${version})" coinor-libclp1
                 RECOMMENDS chorus-trainer gnuplot-nox graphviz iproute2)
  if(TARGET chorus-perf-worker-openmpi OR TARGET chorus-perf-worker-mpich OR
     TARGET chorus-perf-worker-gloo)
    set(launchers "")
    if(TARGET chorus-perf-worker-openmpi)
      list(APPEND launchers openmpi-bin)
    endif()
    if(TARGET chorus-perf-worker-mpich)
      list(APPEND launchers mpich)
    endif()
    chorus_package(peers chorus-perf-peers utils "Other libraries beside Chorus in chorus-perf"
                   DEPENDS "chorus-tools (= ${version})" ${launchers})
  endif()
  if(TARGET train)
    chorus_package(trainer chorus-trainer utils "A transformer trainer on Chorus, and its planner"
                   DEPENDS "${library} (= ${version})" "libchorus-nccl (= ${version})")
  endif()
endif()
# chorus_compiled_package(COMPONENT PACKAGE): compiled when installed, and what Python compiled goes
# with the package.
macro(chorus_compiled_package component package)
  set(scripts "")
  foreach(script IN ITEMS postinst prerm)
    set(maintained ${PROJECT_BINARY_DIR}/debian/${package}/${script})
    file(READ ${PROJECT_SOURCE_DIR}/cmake/debian/python3.${script}.in text)
    string(REPLACE "@package@" ${package} text "${text}")
    file(CONFIGURE OUTPUT ${maintained} CONTENT "${text}" @ONLY)
    file(CHMOD ${maintained} PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ
                                         GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
    list(APPEND scripts ${maintained})
  endforeach()
  string(TOUPPER ${component} key)
  set(CPACK_DEBIAN_${key}_PACKAGE_CONTROL_EXTRA ${scripts})
endmacro()
if(TARGET chorus_python)
  chorus_package(python python3-chorus python "Collective communication for Python"
                 DEPENDS "${library} (= ${version})" "python3 (>= 3.11)" RECOMMENDS python3-numpy)
  chorus_compiled_package(python python3-chorus)
endif()
# For the Python that Debian calls python3 alone: another's packages live elsewhere.
if(TARGET chorus_torch AND CHORUS_TORCH_PYTHON STREQUAL "/usr/bin/python3")
  get_target_property(torch chorus_torch_parts CHORUS_TORCH_VERSION)
  string(REGEX REPLACE "^([0-9]+)\\.([0-9]+).*" "\\1;\\2" torch ${torch})
  list(GET torch 0 major)
  list(GET torch 1 minor)
  math(EXPR next "${minor} + 1")
  chorus_package(torch python3-chorus-torch python "Collective communication for PyTorch"
                 DEPENDS "${library} (= ${version})" "python3-torch (>= ${major}.${minor})"
                         "python3-torch (<< ${major}.${next})")
  chorus_compiled_package(torch python3-chorus-torch)
endif()
include(CPack)
