"""What the host keeps and needs: files, builds of host functions, work that nothing may break off."""
