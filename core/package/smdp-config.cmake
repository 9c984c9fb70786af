# Use find_package(smdp) in your project, with -Dsmdp_DIR=$(python -m smdp.cpp --cmake).
include(CMakeFindDependencyMacro)
find_dependency(Threads)

if(NOT TARGET smdp::smdp)
  cmake_path(CONVERT "${CMAKE_CURRENT_LIST_DIR}/../.." TO_CMAKE_PATH_LIST smdp_folder NORMALIZE)
  add_library(smdp::smdp SHARED IMPORTED)
  set_target_properties(smdp::smdp PROPERTIES IMPORTED_LOCATION "${smdp_folder}/libsmdp.so"
                                              INTERFACE_INCLUDE_DIRECTORIES "${smdp_folder}/include"
                                              INTERFACE_LINK_LIBRARIES Threads::Threads)
  target_compile_features(smdp::smdp INTERFACE cxx_std_20)
endif()
