# Apicurio Registry stores in topics (kafkasql).
recipe schema-registry-as-of-a-moment
works "Apicurio Registry" "$(sed -n 's/^version=//p' "$here/../cookbook/schema-registry-as-of-a-moment/setup.sh")" \
    "versions of a schema registered and deleted, with \`kafkasql\`; a second registry on the journal as of a moment has the versions of then"
