# cmake -DFOLDER=DIR -DOUTPUT=FILE -P help_texts.cmake: writes DIR/NAME.txt as entries {"NAME", TEXT} of an array.
file(GLOB files "${FOLDER}/*.txt")
set(entries)
foreach(file IN LISTS files)
  file(READ "${file}" text)
  get_filename_component(name "${file}" NAME_WE)
  string(APPEND entries "{\"${name}\", R\"help(${text})help\"},\n")
endforeach()
file(WRITE "${OUTPUT}" "${entries}")
