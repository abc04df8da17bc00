// An account without keys, a container for workflows, and an identity that may use it.
//
//   az deployment group create --resource-group RG --template-file deploy/azure/main.bicep --parameters name=YOUR-ACCOUNT

@description('Name of the account; it becomes a part of its address.')
param name string

@description('Where it is.')
param location string = resourceGroup().location

@description('Database of the workflows.')
param database string = 'shop'

@description('Container of the workflows.')
param container string = 'workflows'

@description('Most request units a second; a tenth of it is the least that is paid for.')
@minValue(1000)
param throughput int = 1000

@description('Object ids of people who look after workflows with cdb.')
param operators array = []

// Cosmos DB Built-in Data Contributor, in every account.
var contributor = '00000000-0000-0000-0000-000000000002'

// The same definition that the provider compares a container with: see docs/operations.md.
var definition = loadJsonContent('container.json')

resource identity 'Microsoft.ManagedIdentity/userAssignedIdentities@2023-01-31' = {
  name: '${name}-worker'
  location: location
}

resource account 'Microsoft.DocumentDB/databaseAccounts@2024-05-15' = {
  name: name
  location: location
  kind: 'GlobalDocumentDB'
  properties: {
    databaseAccountOfferType: 'Standard'
    // Keys open everything and are copied; identities are not.
    disableLocalAuth: true
    minimalTlsVersion: 'Tls12'
    // Below Session a process may not see its own writes; with several write regions a turn could be committed twice.
    consistencyPolicy: { defaultConsistencyLevel: 'Session' }
    enableMultipleWriteLocations: false
    locations: [{ locationName: location, failoverPriority: 0, isZoneRedundant: false }]
    backupPolicy: { type: 'Continuous', continuousModeProperties: { tier: 'Continuous7Days' } }
  }
}

resource sql 'Microsoft.DocumentDB/databaseAccounts/sqlDatabases@2024-05-15' = {
  parent: account
  name: database
  properties: { resource: { id: database } }
}

resource workflows 'Microsoft.DocumentDB/databaseAccounts/sqlDatabases/containers@2024-05-15' = {
  parent: sql
  name: container
  properties: {
    resource: union(definition, { id: container })
    options: { autoscaleSettings: { maxThroughput: throughput } }
  }
}

resource worker 'Microsoft.DocumentDB/databaseAccounts/sqlRoleAssignments@2024-05-15' = {
  parent: account
  name: guid(account.id, identity.id, contributor)
  properties: {
    principalId: identity.properties.principalId
    roleDefinitionId: '${account.id}/sqlRoleDefinitions/${contributor}'
    scope: '${account.id}/dbs/${database}'
  }
  dependsOn: [sql]
}

resource people 'Microsoft.DocumentDB/databaseAccounts/sqlRoleAssignments@2024-05-15' = [for person in operators: {
  parent: account
  name: guid(account.id, person, contributor)
  properties: {
    principalId: person
    roleDefinitionId: '${account.id}/sqlRoleDefinitions/${contributor}'
    scope: '${account.id}/dbs/${database}'
  }
  dependsOn: [sql]
}]

output endpoint string = account.properties.documentEndpoint
output clientId string = identity.properties.clientId
