# Warnings for our own code, linked PRIVATE by every target.
add_library(chorus_warnings INTERFACE)
add_library(chorus::warnings ALIAS chorus_warnings)
target_compile_options(chorus_warnings INTERFACE -Wall -Wextra -Wpedantic -Wshadow -Wconversion
                                                 -Wno-sign-conversion)
if(CHORUS_WERROR)
  target_compile_options(chorus_warnings INTERFACE -Werror)
endif()
