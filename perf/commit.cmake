# Writes OUTPUT, a header with the commit that is built, if it changed. Run with -P at every build.
execute_process(COMMAND git describe --always --dirty --abbrev=12 --exclude=*
                WORKING_DIRECTORY ${SOURCE} OUTPUT_VARIABLE commit ERROR_QUIET
                OUTPUT_STRIP_TRAILING_WHITESPACE)
if(NOT commit)
  set(commit unknown)
endif()
set(text "// Made at every build.\n#pragma once\n\nnamespace chorus::perf {\ninline constexpr const char* kCommit = \"${commit}\";\n}  // namespace chorus::perf\n")
if(EXISTS ${OUTPUT})
  file(READ ${OUTPUT} old)
endif()
if(NOT old STREQUAL text)
  file(WRITE ${OUTPUT} "${text}")
endif()
