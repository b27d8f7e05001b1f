# chorus_add_room(NAME SOURCES file... [USES target...] [PRIVATE target...]): the folder this is called
# in becomes the library chorus::NAME. Its headers may show what it USES; what is PRIVATE its sources
# alone include. rooms_test holds every source to that.
function(chorus_add_room name)
  cmake_parse_arguments(PARSE_ARGV 1 room "" "" "SOURCES;USES;PRIVATE")
  add_library(chorus_${name} STATIC ${room_SOURCES})
  add_library(chorus::${name} ALIAS chorus_${name})
  target_link_libraries(chorus_${name} PUBLIC ${room_USES} PRIVATE ${room_PRIVATE} chorus::warnings)
endfunction()

# chorus_join_rooms(NAME room...): chorus::NAME stands for all of them.
function(chorus_join_rooms name)
  list(TRANSFORM ARGN PREPEND chorus:: OUTPUT_VARIABLE rooms)
  add_library(chorus_${name} INTERFACE)
  add_library(chorus::${name} ALIAS chorus_${name})
  target_link_libraries(chorus_${name} INTERFACE ${rooms})
endfunction()
