# Manual pages and completions: what the commands print of themselves.

# chorus_document(NAME COMPONENT COMMAND): share/man/man1/NAME.1 and two completions. COMMAND takes
# --man and --completion SHELL.
function(chorus_document name component command)
  set(made ${PROJECT_BINARY_DIR}/documentation)
  foreach(form IN ITEMS man bash zsh)
    set(${form} ${made}/${form}/${name})
    set(question --completion ${form})
    if(form STREQUAL "man")
      set(man ${man}.1)
      set(question --man)
    elseif(form STREQUAL "zsh")
      set(zsh ${made}/zsh/_${name})
    endif()
    add_custom_command(OUTPUT ${${form}}
      COMMAND ${CMAKE_COMMAND} -E make_directory ${made}/${form}
      COMMAND ${command} ${question} > ${${form}}
      DEPENDS ${command} VERBATIM)
    list(APPEND outputs ${${form}})
  endforeach()
  add_custom_target(document-${name} ALL DEPENDS ${outputs})
  set(zsh_functions ${CMAKE_INSTALL_DATAROOTDIR}/zsh/site-functions)
  if(CMAKE_INSTALL_PREFIX STREQUAL "/usr" AND EXISTS /etc/debian_version)
    set(zsh_functions ${CMAKE_INSTALL_DATAROOTDIR}/zsh/vendor-completions)
  endif()
  install(FILES ${man} DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 COMPONENT ${component})
  install(FILES ${bash} DESTINATION ${CMAKE_INSTALL_DATAROOTDIR}/bash-completion/completions
          COMPONENT ${component})
  install(FILES ${zsh} DESTINATION ${zsh_functions} COMPONENT ${component})
endfunction()

function(chorus_install_documentation)
  chorus_document(chorus tools chorus_cli)
  chorus_document(chorus-perf tools chorus-perf)
  chorus_document(chorus-perf-selection tools chorus_perf_selection)
  chorus_document(chorus-perf-startup tools chorus-perf-startup)
  chorus_document(chorus-perf-rejoin tools chorus-perf-rejoin)
  chorus_document(chorus-perf-synthesis tools chorus-perf-synthesis)
  if(TARGET train)
    # The trainer stands on include/ alone, like any program: somebody else prints its table.
    add_executable(describe-train ${PROJECT_SOURCE_DIR}/src/command/train/describe.cpp)
    target_compile_definitions(describe-train PRIVATE CHORUS_VERSION="${PROJECT_VERSION}")
    target_link_libraries(describe-train PRIVATE chorus_trainer_arguments chorus::command
                                                 chorus::warnings)
    chorus_document(train trainer describe-train)
  endif()
endfunction()

# The API reference, by whoever asks for it.
find_program(DOXYGEN doxygen)
if(DOXYGEN)
  add_custom_target(reference
    COMMAND ${CMAKE_COMMAND} -E env CHORUS_REFERENCE=${PROJECT_BINARY_DIR} ${DOXYGEN} docs/Doxyfile
    WORKING_DIRECTORY ${PROJECT_SOURCE_DIR} VERBATIM)
endif()
