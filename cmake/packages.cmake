# cmake --install, and three Debian packages by CPack: cadre (the command), cadre-daemons (coordinator and
# aggregator, with systemd units), cadre-worker; each with a package -dbgsym that has its symbols.
# deploy/package.sh builds them.
include(GNUInstallDirs)

install(TARGETS cadre RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT cadre)
install(TARGETS cadre-coordinator cadre-aggregator
  RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT daemons)
install(TARGETS cadre-worker RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT worker)
# No Debian package; deploy/wheel.sh takes it.
install(TARGETS cadre_group LIBRARY DESTINATION lib COMPONENT python)
install(FILES deploy/demo.textproto deploy/low-traffic.textproto
  DESTINATION ${CMAKE_INSTALL_DATADIR}/cadre COMPONENT cadre)
install(DIRECTORY model/zoo/ DESTINATION ${CMAKE_INSTALL_DATADIR}/cadre/zoo COMPONENT cadre
  FILES_MATCHING PATTERN "*.textproto")
install(DIRECTORY deploy/monitoring DESTINATION ${CMAKE_INSTALL_DATADIR}/cadre COMPONENT daemons)
install(FILES deploy/slurm/cadre.sbatch
  DESTINATION ${CMAKE_INSTALL_DATADIR}/cadre COMPONENT worker)
set(daemons_units coordinator aggregator)
set(worker_units worker)
foreach(component daemons worker)
  foreach(name ${${component}_units})
    install(FILES deploy/systemd/cadre-${name}.service DESTINATION lib/systemd/system
      COMPONENT ${component})
    install(FILES deploy/systemd/cadre-${name}.default DESTINATION /etc/default RENAME cadre-${name}
      COMPONENT ${component})
  endforeach()
  install(FILES deploy/systemd/cadre.sysusers DESTINATION lib/sysusers.d
    RENAME cadre-${component}.conf COMPONENT ${component})
endforeach()
install(FILES deploy/systemd/cadre-worker.service DESTINATION lib/systemd/system
  RENAME cadre-worker@.service COMPONENT worker)

# Manual pages from the help of the programs; the target `manuals` makes them.
find_program(HELP2MAN help2man)
if(HELP2MAN)
  set(manuals)
  foreach(entry "cadre:cadre:command line of Cadre, which trains one model on many machines"
      "cadre-coordinator:daemons:coordinator of Cadre" "cadre-aggregator:daemons:aggregator of Cadre"
      "cadre-worker:worker:worker of Cadre")
    string(REPLACE ":" ";" entry "${entry}")
    list(GET entry 0 program)
    list(GET entry 1 component)
    list(GET entry 2 description)
    set(manual "${PROJECT_BINARY_DIR}/packages/${program}.1")
    add_custom_command(OUTPUT "${manual}"
      COMMAND "${HELP2MAN}" --no-info --no-discard-stderr --name "${description}"
        --output "${manual}" $<TARGET_FILE:${program}>
      DEPENDS ${program} VERBATIM)
    list(APPEND manuals "${manual}")
    install(FILES "${manual}" DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 COMPONENT ${component} OPTIONAL)
  endforeach()
  set(verbs "${PROJECT_BINARY_DIR}/packages/verbs")
  add_custom_command(OUTPUT "${verbs}/cadre-help.1"
    COMMAND bash "${PROJECT_SOURCE_DIR}/deploy/manuals.sh" $<TARGET_FILE:cadre> "${verbs}"
    DEPENDS cadre deploy/manuals.sh VERBATIM)
  install(DIRECTORY "${verbs}/" DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 COMPONENT cadre OPTIONAL)
  add_custom_target(manuals DEPENDS ${manuals} "${verbs}/cadre-help.1")
endif()

# Only the programs are packaged, so not everything must be built first.
set(CMAKE_SKIP_INSTALL_ALL_DEPENDENCY ON)
set(CPACK_GENERATOR DEB)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_ALL cadre daemons worker)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGE_CONTACT "Cadre <cadre@localhost>")
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
# Moves the symbols of the programs into the packages -dbgsym. Release builds have names of functions, no lines.
set(CPACK_DEBIAN_DEBUGINFO_PACKAGE ON)
# The shared libraries that the programs load.
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_CADRE_PACKAGE_NAME cadre)
set(CPACK_DEBIAN_DAEMONS_PACKAGE_NAME cadre-daemons)
set(CPACK_DEBIAN_WORKER_PACKAGE_NAME cadre-worker)
set(CPACK_DEBIAN_CADRE_PACKAGE_RECOMMENDS "cadre-daemons, cadre-worker")
# For the demo's run.
set(CPACK_DEBIAN_WORKER_PACKAGE_RECOMMENDS "dataset-fashion-mnist")
# What the two packages with units do when they are installed: make the user, load the units.
foreach(component daemons worker)
  set(control "${PROJECT_BINARY_DIR}/packages/${component}")
  set(files)
  foreach(name ${${component}_units})
    string(APPEND files "/etc/default/cadre-${name}\n")
  endforeach()
  file(WRITE "${control}/conffiles" "${files}")
  file(WRITE "${control}/postinst" "#!/bin/sh
set -e
if command -v systemd-sysusers >/dev/null; then systemd-sysusers cadre-${component}.conf; fi
if [ -d /run/systemd/system ]; then systemctl daemon-reload; fi
")
  file(CHMOD "${control}/postinst" PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE
    GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
  string(TOUPPER ${component} upper)
  set(CPACK_DEBIAN_${upper}_PACKAGE_CONTROL_EXTRA "${control}/conffiles;${control}/postinst")
endforeach()
set(CPACK_COMPONENT_CADRE_DESCRIPTION "Command line of Cadre
 Trains one model on many machines connected by slow links: starts local clusters, submits and
 follows runs, plans, certificates.")
set(CPACK_COMPONENT_DAEMONS_DESCRIPTION "Coordinator and aggregator of Cadre
 The long-running services of a cluster, as systemd units.")
set(CPACK_COMPONENT_WORKER_DESCRIPTION "Worker of Cadre
 Trains as a member of the groups that a coordinator forms, as a systemd unit.")
include(CPack)
