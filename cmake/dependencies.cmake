# Third-party packages, found by CMake config where the package ships one, by CMake's own modules
# (SQLite3, ZLIB, JPEG) or pkg-config (ISA-L, CBC) where it does not. docs/architecture.md says why
# each is here.
find_package(Threads REQUIRED)
find_package(gRPC CONFIG REQUIRED)  # brings absl, protobuf, OpenSSL, c-ares and re2
find_package(Protobuf REQUIRED)
find_package(absl CONFIG REQUIRED)
find_package(gflags CONFIG REQUIRED)
find_package(glog CONFIG REQUIRED)
find_package(dnnl CONFIG REQUIRED)
find_package(OpenMP REQUIRED COMPONENTS CXX)
find_package(SQLite3 REQUIRED)
find_package(nlohmann_json 3.10 CONFIG REQUIRED)
find_package(ZLIB REQUIRED)
find_package(JPEG REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(ISAL REQUIRED IMPORTED_TARGET libisal)
pkg_check_modules(CBC REQUIRED IMPORTED_TARGET cbc)
if(CADRE_TESTS OR NOT DEFINED CADRE_TESTS)
  find_package(GTest CONFIG REQUIRED)
endif()
