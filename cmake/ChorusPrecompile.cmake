# Precompiled headers of the standard library, fmt and GoogleTest: 10 to 30 % of the time to compile
# a source of this project is theirs. No header of the project is among them, so that nothing is
# compiled again for a change; and each source names what it includes all the same, which the
# builds without (packages, clang-tidy) see to.
#
# GCC takes a precompiled header only with the options that it was made with: one for what goes into
# libraries, one for programs, one for tests. Targets and sources with options of their own go
# without: where only -O differs, GCC 12 takes the header and ends with an internal error.
include(ChorusTargets)

function(chorus_precompile)
  set(source ${CMAKE_CURRENT_BINARY_DIR}/precompiled.cpp)
  file(CONFIGURE OUTPUT ${source} CONTENT "int main() {}\n")
  chorus_targets_below(${CMAKE_CURRENT_SOURCE_DIR} targets)

  set(headers <algorithm> <array> <atomic> <chrono> <cmath> <cstdint> <cstring> <filesystem>
              <fstream> <functional> <map> <memory> <mutex> <numeric> <optional> <random> <set>
              <span> <string> <string_view> <thread> <tuple> <utility> <vector> <fmt/format.h>)
  set(kinds libraries programs)
  if(CHORUS_BUILD_TESTS)
    list(APPEND kinds tests)
  endif()
  foreach(fmt compiled_in shared) # as src/base has it, and as the trainer has it
    foreach(kind IN LISTS kinds)
      set(name chorus_precompiled_${kind}_${fmt})
      if(kind STREQUAL libraries)
        add_library(${name} OBJECT EXCLUDE_FROM_ALL ${source})
      else()
        add_executable(${name} EXCLUDE_FROM_ALL ${source})
      endif()
      target_precompile_headers(${name} PRIVATE ${headers}
        $<$<STREQUAL:${kind},tests>:<gmock/gmock.h$<ANGLE-R>>
        $<$<STREQUAL:${kind},tests>:<gtest/gtest.h$<ANGLE-R>>)
      # Whether GCC is pedantic counts as an option.
      target_link_libraries(${name} PRIVATE chorus::warnings
                                            $<$<STREQUAL:${kind},tests>:GTest::gmock>)
      target_compile_definitions(${name} PRIVATE $<$<STREQUAL:${fmt},shared>:FMT_SHARED>)
      set_target_properties(${name} PROPERTIES PCH_WARN_INVALID OFF)
    endforeach()
  endforeach()

  get_property(common DIRECTORY PROPERTY COMPILE_OPTIONS)
  foreach(target IN LISTS targets)
    get_target_property(type ${target} TYPE)
    get_target_property(sources ${target} SOURCES)
    get_property(own TARGET ${target} PROPERTY COMPILE_OPTIONS)
    get_target_property(folder ${target} SOURCE_DIR)
    get_target_property(links ${target} LINK_LIBRARIES)
    set(kind "")
    if(type MATCHES "^(STATIC|SHARED|MODULE|OBJECT)_LIBRARY$")
      set(kind libraries)
    elseif(type STREQUAL EXECUTABLE AND "GTest::gtest_main" IN_LIST links)
      set(kind tests)
    elseif(type STREQUAL EXECUTABLE)
      set(kind programs)
    endif()
    if(kind AND NOT "${sources}" MATCHES "\\.c(;|$)" AND "${own}" STREQUAL "${common}")
      set(fmt compiled_in)
      if(folder MATCHES "/trainer$")
        set(fmt shared)
      endif()
      target_precompile_headers(${target} REUSE_FROM chorus_precompiled_${kind}_${fmt})
      set_target_properties(${target} PROPERTIES PCH_WARN_INVALID OFF)
      foreach(one IN LISTS sources)
        cmake_path(ABSOLUTE_PATH one BASE_DIRECTORY ${folder})
        get_source_file_property(options ${one} TARGET_DIRECTORY ${target} COMPILE_OPTIONS)
        if(options)
          set_source_files_properties(${one} TARGET_DIRECTORY ${target}
                                      PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
        endif()
      endforeach()
    endif()
  endforeach()
endfunction()
