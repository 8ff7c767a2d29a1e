module freezeframe/clients/go

go 1.22
