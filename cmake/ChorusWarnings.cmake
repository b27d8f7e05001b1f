# Warnings for our own code, linked PRIVATE by every target.
add_library(chorus_warnings INTERFACE)
add_library(chorus::warnings ALIAS chorus_warnings)
target_compile_options(chorus_warnings INTERFACE -Wall -Wextra -Wpedantic -Wshadow -Wconversion
                                                 -Wno-sign-conversion)
if(CHORUS_WERROR)
  target_compile_options(chorus_warnings INTERFACE -Werror)
endif()
# GCC takes the sources of a unity build for headers, and warns of their anonymous namespaces.
if(CMAKE_UNITY_BUILD AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  target_compile_options(chorus_warnings INTERFACE -Wno-subobject-linkage)
endif()
