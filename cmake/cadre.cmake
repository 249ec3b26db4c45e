# The few functions with which every room describes itself.

# Flags for everything of ours: C++20, warnings as errors, programs into <build>/bin.
macro(cadre_compile_options)
  set(CMAKE_CXX_STANDARD 20)
  set(CMAKE_CXX_STANDARD_REQUIRED ON)
  set(CMAKE_CXX_EXTENSIONS OFF)
  set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
  set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
  if(NOT CMAKE_BUILD_TYPE)
    set(CMAKE_BUILD_TYPE Release CACHE STRING "Debug, Release or RelWithDebInfo" FORCE)
  endif()
  # Release keeps assertions out but optimises for size of compile time, not the last per cent:
  # the hot loops live in oneDNN.
  set(CMAKE_CXX_FLAGS_RELEASE "-O2")
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-Wall> $<$<COMPILE_LANGUAGE:CXX>:-Wextra>
    $<$<COMPILE_LANGUAGE:CXX>:-Werror> $<$<COMPILE_LANGUAGE:CXX>:-Wno-missing-field-initializers>)
  # Programs carry paths as they are in the repository, not as they were where they were built.
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-ffile-prefix-map=${PROJECT_SOURCE_DIR}/=>)
  if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    add_compile_options(-Wthread-safety)
  endif()
  if(CADRE_SANITIZE)
    add_compile_options(-fsanitize=${CADRE_SANITIZE} -fno-omit-frame-pointer -g1)
    add_link_options(-fsanitize=${CADRE_SANITIZE})
  endif()
endmacro()

# Abseil, gRPC and OpenMP come without ThreadSanitizer; this tells it about their locks and joins.
function(cadre_thread_sanitizer name)
  if(CADRE_SANITIZE STREQUAL "thread")
    target_sources(${name} PRIVATE
      ${PROJECT_SOURCE_DIR}/tests/sanitizer/absl_locks.cc
      ${PROJECT_SOURCE_DIR}/tests/sanitizer/openmp.cc)
    target_link_libraries(${name} PRIVATE absl::synchronization ${CMAKE_DL_LIBS})
  endif()
endfunction()

# cadre_library(NAME SOURCES a.cc ... [DEPS lib ...]): the library of a room, linked as cadre_NAME.
function(cadre_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_library(cadre_${name} STATIC ${ARG_SOURCES})
  target_include_directories(cadre_${name} PUBLIC ${PROJECT_SOURCE_DIR})
  target_link_libraries(cadre_${name} PUBLIC ${ARG_DEPS})
endfunction()

# cadre_program(NAME SOURCES main.cc ... [DEPS lib ...]): a program in <build>/bin.
function(cadre_program name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${name} PRIVATE ${ARG_DEPS})
  cadre_thread_sanitizer(${name})
endfunction()

# cadre_test(NAME SOURCES x_test.cc ... [DEPS lib ...] [ARGS arg ...] [LABEL fast|slow] [TIMEOUT seconds]):
# one GoogleTest program, one CTest entry per program.
function(cadre_test name)
  cmake_parse_arguments(ARG "" "LABEL;TIMEOUT" "SOURCES;DEPS;ARGS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  if(NOT ARG_LABEL)
    set(ARG_LABEL fast)
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} GTest::gmock GTest::gtest GTest::gtest_main)
  cadre_thread_sanitizer(${name})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  add_test(NAME ${name} COMMAND ${name} ${ARG_ARGS})
  # A program all of whose tests were skipped, and which said nothing after it said so, counts as
  # skipped. One that also failed lists its failures behind those skipped.
  set_tests_properties(${name} PROPERTIES TIMEOUT ${ARG_TIMEOUT} LABELS ${ARG_LABEL}
    SKIP_REGULAR_EXPRESSION
    "\\[  PASSED  \\] 0 tests.\n\\[  SKIPPED \\] [0-9]+ tests?, listed below:\n(\\[  SKIPPED \\] [^\n]*\n)+$")
endfunction()
